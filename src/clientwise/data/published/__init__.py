"""Loaders of published datasets, which read the files as published. Importing this registers them."""

from . import handwriting as handwriting
from . import images as images
from . import movie_reviews as movie_reviews
from . import tables as tables
