"""Tables and plots of results.

- `compared`: curves of others beside those of an experiment
- `curve`: the data of one line of a figure
- `drawing`: draws the accuracies, acceptance rates and applied updates of a table; start here
- `figure_data`: the panels, lines and curves of a figure
- `final`: the table of final accuracies
- `from_table`: figure data of a table
- `grid_figures`: the figures of a study
- `grid_study`: a study of rules under attacks
- `labels`: names of lines, panels and files
- `method_comparison`: a comparison of methods of training
- `method_figures`: the figures of a comparison
- `options`: the options of figures, and the lines and panels that they choose
- `page`: a figure: its heading, panels, lines, bars and legend; and its files
- `participation`: the rounds of each worker of a run with a quorum
- `publish`: writes figures to the results folder, and published copies
- `report/`: one HTML file with everything
- `search`: the table and the figure of a search
- `speedup`: the figure of the speed-up by the number of workers
- `style`: line styles
- `timeline`: the figure of a trace
- `traffic`: the bytes, and the modelled time, that each line needs until a target
"""
