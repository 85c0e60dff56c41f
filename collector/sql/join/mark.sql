-- Remembers that the requests of a segment are joined.
INSERT INTO joined_segments (segment, refused) VALUES ({segment:String}, {refused:String})
