"""`python src compare`: is one run better than another?"""
