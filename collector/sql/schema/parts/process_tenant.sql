-- The tenant to which the process of a span belongs: that of its resource, and never that of a span, since a process serves requests of
-- several tenants. A receiver writes the tenant of a sender's key into the resource. Empty: it belongs to all tenants.
resource['tokentrail.tenant']
