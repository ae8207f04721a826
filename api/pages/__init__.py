"""The pages' parts: what is asked in forms, what each page says, its pictures and its words. Nothing here knows of HTTP."""
