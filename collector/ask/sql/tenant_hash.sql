-- A number for the tenant of a process, as `tokens` has it (collector/otlp/tokens.py); 0 where it belongs to no tenant.
if(process_tenant = '', 0, reinterpretAsUInt64(MD5(process_tenant)))
