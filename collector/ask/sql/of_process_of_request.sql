-- Rows of a request's engine process: of its tenant's, and of one with this name that belongs to all tenants.
process_tenant IN ({process_tenant:String}, '') AND service = {service:String} AND instance = {instance:String}
