//! Conversion between JSON values and Python objects.

use pyo3::{
    exceptions::PyTypeError,
    prelude::*,
    types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyNone, PyString, PyTuple},
};
use serde_json::{Map, Number, Value};

/// Maximum nesting depth of a value.
const DEPTH: usize = 64;

/// A JSON value as dict, list, str, int, float, bool or None.
pub(crate) fn to_python(py: Python<'_>, value: &Value) -> PyResult<Py<PyAny>> {
    Ok(match value {
        Value::Null => py.None(),
        Value::Bool(flag) => PyBool::new(py, *flag).to_owned().into_any().unbind(),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => whole.into_pyobject(py)?.into_any().unbind(),
            (None, Some(whole)) => whole.into_pyobject(py)?.into_any().unbind(),
            (None, None) => PyFloat::new(py, number.as_f64().unwrap_or(f64::NAN)).into_any().unbind(),
        },
        Value::String(text) => PyString::new(py, text).into_any().unbind(),
        Value::Array(items) => {
            let list = PyList::empty(py);
            for item in items {
                list.append(to_python(py, item)?)?;
            }
            list.into_any().unbind()
        }
        Value::Object(members) => {
            let dict = PyDict::new(py);
            for (name, item) in members {
                dict.set_item(name, to_python(py, item)?)?;
            }
            dict.into_any().unbind()
        }
    })
}

/// A Python object as a JSON value.
pub(crate) fn from_python(value: &Bound<'_, PyAny>) -> PyResult<Value> {
    nested(value, DEPTH)
}

fn nested(value: &Bound<'_, PyAny>, depth: usize) -> PyResult<Value> {
    let Some(depth) = depth.checked_sub(1) else { return Err(PyTypeError::new_err("nested too deeply")) };
    if value.is_instance_of::<PyNone>() {
        return Ok(Value::Null);
    }
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(Value::Bool(flag.is_true()));
    }
    if value.is_instance_of::<PyInt>() {
        return Ok(value.extract::<i64>()?.into());
    }
    if let Ok(number) = value.cast::<PyFloat>() {
        let finite = Number::from_f64(number.value());
        return finite.map(Value::Number).ok_or_else(|| PyTypeError::new_err("a number must be finite"));
    }
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(Value::String(text.to_string_lossy().into_owned()));
    }
    if let Ok(dict) = value.cast::<PyDict>() {
        let mut members = Map::new();
        for (name, item) in dict.iter() {
            members.insert(name.extract()?, nested(&item, depth)?);
        }
        return Ok(Value::Object(members));
    }
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let items = value.try_iter()?.map(|item| nested(&item?, depth));
        return Ok(Value::Array(items.collect::<PyResult<_>>()?));
    }
    Err(PyTypeError::new_err(format!("{} cannot be sent", value.get_type().name()?)))
}
