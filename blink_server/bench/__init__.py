"""`blink-server bench`: a load generator for any server with OpenAI's API.

From the command line to the report: `command` -> `settings` -> `workload` (who arrives when, how
long) -> `prompts` -> `measurement` (`dispatch`, `client`) -> `summary` -> `saturation` -> `report`.
"""
