"""Grade a class's exercise notebooks without trusting any of them.

In:   a folder or zip of notebooks as a learning platform exports them, and the course's own `solutions/`.
Out:  a folder with one JSON result per submission, and from these a report, a gradebook, and CSV for Canvas, Moodle and
      Gradescope. A submission never changes another's result, and a run that was stopped continues (`--resume`).

`run.grade_class` (START HERE) is `fusion grade`. One submission goes through:

    class_folder, archives   find the notebooks, read the student and the exercise from path and metadata
    grade                    take the answer cells, screen their text (helpers.learning.submission_policy), assemble
    sandbox, confinement     run them in bubblewrap: no network, no files, bounded time and memory;
    fork_server              ... as a fork of a process that has already imported PyTorch
    replay                   record launches in the sandbox, replay them on other inputs in a second confined process
    judge                    the trusted side: compares values, and lets the exercise's own checks see the replay only

Around it:

    workers, worker_process          many submissions at once, here or on a cluster
    exercise, variants, release      what an exercise is, its variants, the tree a class gets
    gradebook, lateness, marks       points, lateness, points by hand
    class_report, report_pages, exports, csv_tables, gradescope, similarity    what a teacher sees
    new_exercise                     the command `fusion new-exercise`

docs/grading.md explains it for teachers, and lists the attacks that remain possible.
"""
