-- A service whose spans tell no steps in the window. Where spans and samples both tell, spans win.
(process_tenant, service) NOT IN (SELECT process_tenant, service FROM steps WHERE $parts.started_in_window)
