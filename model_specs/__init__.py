"""Published models, one YAML file each; `estimator.specs` reads them."""
