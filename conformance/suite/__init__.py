"""The wheel suite: device-generic tests over the databases inside the installed torch (op_db, module_db, optim_db).

Written like upstream's own tests, needs no checkout and no network. Expected failures belong into a profile's registry.
"""
