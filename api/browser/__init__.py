"""The estimator without a server: a static folder whose page answers in a web worker, and the npm package that it runs."""
