-- Remembers that the requests of a segment are joined.
INSERT INTO joined_segments (segment, links, refused)
SELECT {segment:String}, arrayMap(link -> (toFixedString(unhex(link.1), 16), link.2), {links:Array(Tuple(String, String))}), {refused:String}
