"""What atom modeling improves: the plan of the study, its runs, and the tables made of them.

    python -m study plan                         how many runs each question has
    python -m study run QUESTION --data DATA     train what is missing, and collect it
    python -m study collect QUESTION             read finished runs into results/
    python -m study tables                       fill in docs/results/ from results/

`run` needs data and, for most tasks, a GPU; `collect` needs finished runs. Everything on the pages
is made from `results/`.
"""
