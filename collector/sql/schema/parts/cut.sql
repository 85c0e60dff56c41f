-- A function that cuts a name out of a JSON text or of an event as collector/otlp/names.py cuts those of attributes.
(name -> if(lengthUTF8(name) > 1024, concat(leftUTF8(name, 1007), '…', lower(left(hex(SHA256(name)), 16))), name))
