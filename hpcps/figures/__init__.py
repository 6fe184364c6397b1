"""Tables and plots of results.

- `figure_data`: the panels, lines and curves of a figure
- `from_table`: figure data of a table
- `curve`: the data of one line of a figure
- `drawing`: draws the accuracies, acceptance rates and applied updates of a table
- `page`: a figure: its heading, panels, lines, bars and legend; and its files
- `style`: line styles
- `labels`: names of lines, panels and files
- `options`: the options of figures, and the lines and panels that they choose
- `final`: the table of final accuracies
- `publish`: writes figures to the results folder, and published copies
- `compared`: curves of others beside those of an experiment
- `traffic`: the bytes, and the modelled time, that each line needs until a target
- `speedup`: the figure of the speed-up by the number of workers
- `imported`: which figures imported logs have data for
- `timeline`: the figure of a trace
- `goodput`: the updates of a run that has lost processes, over time
- `participation`: the rounds of each worker of a run with a quorum
- `search`: the table and the figure of a search
- `grid_study`: a study of rules under attacks
- `grid_figures`: the figures of a study
- `method_comparison`: a comparison of methods of training
- `method_figures`: the figures of a comparison
- `report/`: one HTML file with everything
"""
