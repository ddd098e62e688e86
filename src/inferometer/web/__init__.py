"""A page in the browser, served from this machine to this machine: the verbs of the package as JSON, and the page."""
