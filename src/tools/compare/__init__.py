"""`python src compare`: do runs differ?"""
