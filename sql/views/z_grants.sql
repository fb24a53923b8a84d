-- The last file of all: tables, functions and views exist now, whoever creates them.
DO $$ BEGIN PERFORM grant_roles(); END $$;
