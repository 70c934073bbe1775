//! The shape of a configuration: every key is known, every table is a table, every name that the user gives is a possible one.

use super::field::Field;
use super::key::Kind;
use super::name;
use super::read::Table;

/// Looks through `table` and all tables below it.
pub(super) fn check(table: &Table<'_>) {
    for field in table.fields() {
        let path = field.path();
        match path.kind() {
            Kind::Value => {}
            Kind::Unknown => field.refuse("there is no such key", path.advice()),
            Kind::Table if field.as_dict().is_some() => {
                check_name(&field);
                check(&table.table(path.name()));
            }
            Kind::Table => {
                table.reader().mark_broken(path);
                field.refuse(
                    format!("{} stands where a table is needed", field.kind()),
                    format!("write {}", path.table_example()),
                );
            }
        }
    }
}

fn check_name(field: &Field<'_>) {
    if !field.path().is_named() {
        return;
    }
    if let Some(fault) = name::fault_of_name(field.path().name()) {
        field.refuse(fault, name::NAME);
    }
}
