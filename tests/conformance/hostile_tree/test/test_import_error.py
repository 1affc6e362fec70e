from does_not_exist_anywhere import thing

thing()
