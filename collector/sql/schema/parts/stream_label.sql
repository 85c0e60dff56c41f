-- `stream`: whether a request asked for a stream, as a view tells it (1, 0, or not known); its label, '' where it is not known.
multiIf(stream = 1, 'true', stream = 0, 'false', '')
