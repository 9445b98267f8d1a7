"""ENorm in the shape that other training libraries expect; each module needs its library and only translates."""
