-- Remembers that the requests of a segment are joined.
INSERT INTO joined_segments (segment, links, refused)
SELECT {segment:String}, arrayMap(link -> toFixedString(unhex(link), 16), {links:Array(String)}), {refused:String}
