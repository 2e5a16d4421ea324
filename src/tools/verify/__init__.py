"""`python src verify`: is every file what its record says?"""
