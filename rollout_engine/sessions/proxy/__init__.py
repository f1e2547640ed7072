"""The public Session Proxy's HTTP protocol, both ways: an app that speaks it over a session host, and its client."""
