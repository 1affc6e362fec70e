"""Names of the files in a run's output folder (spec §6); other tools read them."""

RESULTS = "results.jsonl"
JUNIT = "junit.xml"
SUMMARY = "summary.json"
HTML = "report.html"
MARKDOWN = "report.md"
TIMES = "times.json"

ALL = (RESULTS, JUNIT, SUMMARY, HTML, MARKDOWN, TIMES)
