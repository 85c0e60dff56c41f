-- The columns that tell engine processes apart. Two tenants may have processes of one name.
service, instance, process_tenant
