version: str
built_for: str
