"""The worker's and the keeper's side of views: an attempt is finished, whoever is lost. No I/O, no clock, no Ray."""
