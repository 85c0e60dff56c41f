-- The parts of a joined request.
Array($held_part)
