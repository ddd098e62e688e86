"""What tests share: a browser, a web server, tables of other tools, the peers' formulas."""
