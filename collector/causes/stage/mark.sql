-- Remembers that the requests of segments are explained.
INSERT INTO explained_segments (segment, refused) SELECT arrayJoin({segments:Array(String)}), {refused:String}
