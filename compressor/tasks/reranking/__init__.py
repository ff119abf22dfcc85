"""Reranking: how relevant texts are to a query that is read with each of them."""
