"""Tables and plots of results.

- `acceptance`: the figure of acceptance rates
- `accuracy`: the figure of accuracies
- `applied`: applied updates of an asynchronous run by staleness and by worker
- `compared`: curves of others beside those of an experiment
- `curve`: one line of a figure
- `drawing`: draws all figures of a table; start here
- `esync/`: figures that compare methods of training
- `figure_data`: the panels, lines and curves of a figure
- `final`: the table of final accuracies
- `grid/`: figures of a study of rules under attacks
- `labels`: names of lines and panels
- `names`: suffixes of file names
- `options`: the options of figures
- `page`: the layout of a figure, and its files
- `publish`: writes figures to the results folder, and published copies
- `report/`: one HTML file with everything
- `selection`: selects the lines and panels to draw
- `staleness`: the figures of an asynchronous run
- `style`: line styles
- `timeline`: the figure of a trace
"""
