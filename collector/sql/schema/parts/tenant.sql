-- The tenant of a span. A receiver writes the tenant of a sender's key into the resource, so that a span cannot claim another.
if(resource['tokentrail.tenant'] != '', resource['tokentrail.tenant'], text['tokentrail.tenant'])
