-- A number for the tenant of a process: its name may be long, and tokens are many (collector/otlp/tokens.py).
if(process_tenant = '', 0, reinterpretAsUInt64(MD5(process_tenant)))
