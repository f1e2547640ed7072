"""Knowledge search for MCP servers that expect a Typesense: a real one, or an embedded stand-in that says it is one."""
