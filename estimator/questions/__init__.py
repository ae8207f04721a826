"""Questions as people speak them, read: will 13B fit on 2x24GB? which GPU for 70B at 4 bit? what models fit on 24GB?"""
