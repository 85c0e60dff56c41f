"""The MCP server: an agent asks a collector what people ask it with the command line."""
