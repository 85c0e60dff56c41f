-- A service whose spans tell no steps in the window. Where spans and samples both tell, spans win.
service NOT IN (SELECT service FROM steps WHERE $parts.started_in_window)
