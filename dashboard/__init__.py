"""Streamlit dashboard that reads the collector's HTTP API and nothing else: `streamlit run dashboard/app.py`."""
