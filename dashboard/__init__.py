"""Streamlit dashboard over the collector's HTTP API, and nothing else: `streamlit run dashboard/app.py`."""
