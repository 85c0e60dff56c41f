"""The explainer: it reads the requests that have ended, has their time divided into causes, and stores what it gets."""
