"""The report of an experiment: one HTML file with its runs, figures, tables and provenance.

`content` reads the results, and `html` converts figure data to the data of interactive charts, and writes the file from
`report.html`, `report.css` and `report.js`. plotly.js, which draws the charts, comes from the package `plotly`.
"""
