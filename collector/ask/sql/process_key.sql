-- One number for an engine process.
cityHash64(service, instance, process_tenant)
