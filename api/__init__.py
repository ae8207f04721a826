"""The REST service and the web page; `willitfit serve` starts them."""
