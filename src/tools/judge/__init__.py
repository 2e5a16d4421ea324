"""`python src judge`: is the workspace better than a base, after all that was tried before?"""
