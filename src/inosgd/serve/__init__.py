"""The owners' page: an account book in a browser, for owners and for the model owner.

    inosgd account link sqlite:///accounts.db --owner clinic
    inosgd serve sqlite:///accounts.db

What owners change here is an entry of the book's chain, from which trainings learn of it (`inosgd.accounts.heeding`).
This room reads and writes books and reads run folders. It starts no training and reads no data.
"""
