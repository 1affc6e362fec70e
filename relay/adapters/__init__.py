"""Other systems, one module each: GitHub's API, OIDC key servers, HUD, the allowlist's source.

What lives here: requests and the caching that belongs to them. What must not: SQL, FastAPI, and decisions beyond
"what did this server just tell us".
"""
