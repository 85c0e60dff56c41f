-- One number for the kind of a request and its engine process, as collector.timeouts groups them.
cityHash64(model, slo_class, vantage, operation, service, instance, process_tenant)
