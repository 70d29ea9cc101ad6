"""From measurements to answers: journals, tables, queries, exports, reports. Standard library only."""
